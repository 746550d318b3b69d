"""What a person is told instead of a traceback."""


class ReaderError(Exception):
    """Something that the person can put right; its text is the sentence that is shown."""
