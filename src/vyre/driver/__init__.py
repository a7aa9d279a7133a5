"""The substrate-neutral layer between programs and backends."""
