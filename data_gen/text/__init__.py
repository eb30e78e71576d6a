"""Text as the rules take it: lines of files of any compression, documents of any format, sentences, tokens on disk.

It imports of data_gen the options alone; all packages but inspection import it.
"""
