"""What can go wrong, by who is at fault; `exit_code` is the command line's."""


class PrepAssetsError(Exception):
    """Base of every error of ours: one finished sentence, so that it survives pickling between processes."""

    exit_code = 1


class SourceError(PrepAssetsError):
    """The source is at fault: names file, row or line, column and cause."""


class TokenizerError(PrepAssetsError):
    """The tokenizer cannot do what the recipe asks of it."""

    exit_code = 2


class EngineError(PrepAssetsError):
    """A fast engine gave other ids than the reference: it is recorded, and what it made is made again without it."""


class TokenRangeError(PrepAssetsError):
    """A token id or a length that the chosen dtype cannot hold."""


class DamagedFileError(PrepAssetsError):
    """A file is not what its header, its receipt or its manifest says."""


class NotReadyError(PrepAssetsError):
    """Something upstream is missing or out of date; the message names the command that makes it."""


class RecipeError(PrepAssetsError):
    """The recipe or the command line is at fault; one line per fault."""

    exit_code = 2


class BusyError(PrepAssetsError):
    """Another process holds what this one needs."""

    exit_code = 4


class StorageError(PrepAssetsError):
    """Disk or network: no room, no permission, no connection."""

    exit_code = 5
