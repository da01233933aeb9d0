"""`msaccucmp compare` and `file_compare`: dumps against dumps, or against what the framework computed.

Numbers, columns, texts in the table and exit codes are those of the original. See docs/msaccucmp.md#compare.
"""
