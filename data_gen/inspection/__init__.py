"""Record files read back: shown with statistics (`overview`), and checked byte by byte (`verification`).

It imports of data_gen the options alone, so that what it says of records does not come from what made them. The
commands alone import it.
"""
