"""The error that a person can mend."""


class UserError(ValueError):
    """Something given to the program is wrong: a flag, a file, a record.

    Its message says what was received, what was expected and how to mend it. Scripts print it without a traceback;
    any other exception is a defect of the program and keeps its traceback.
    """
