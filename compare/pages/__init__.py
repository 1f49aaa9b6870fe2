"""Common parts of this project's HTML pages: templates, one style sheet, one set of colours."""
