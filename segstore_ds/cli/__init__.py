"""The command line, such as `segstore info`; here are the exit statuses of its commands.

This package is a client of the public API. It imports no pyspark: the demo runs Spark by code that
it prints.
"""

DAMAGED = 1
FAILED = 2
NOT_CONFIRMED = 3
RETRYABLE = 4
INTERRUPTED = 130
BROKEN_PIPE = 141

MEANINGS = {
    0: "done",
    DAMAGED: "`verify`, `repair` or `salvage` found damage, `ls` a stream that can't be opened",
    FAILED: "a failure, which stderr explains, or arguments that are not valid",
    NOT_CONFIRMED: "the question was not answered with yes, or nobody could be asked",
    RETRYABLE: "a failure that may pass: run the same command again",
    INTERRUPTED: "interrupted by Ctrl-C",
    BROKEN_PIPE: "the program that read the output has ended",
}
