"""What a program is and means."""

from . import above

above.where |= {
    name: f"{__name__}.{module}"
    for module, names in {
        "check.determinism": "determinism",
        "check.requirements": "ops requirements stats",
        "check.validate": "validate",
        "formats.canon": "canonicalize fingerprint",
        "formats.text": "print_program",
        "formats.wire": "decode encode",
    }.items()
    for name in names.split()
}
