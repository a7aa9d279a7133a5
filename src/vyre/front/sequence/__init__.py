"""Several calls together: functions that are recorded once and repeated as one dispatch, and streams of arguments."""
