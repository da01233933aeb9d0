"""`msaccucmp compare` and `file_compare`: compares dumps with dumps, or with the results of a framework.

Numbers, columns, texts in the table and exit codes are those of the original. See docs/msaccucmp.md#compare.
"""
