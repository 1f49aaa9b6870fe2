"""The HTML report: one page from the JSON files of the commands, made without a GPU.

Needs matplotlib and Jinja2, the extra ``report``; both are imported when a page is made.
"""
