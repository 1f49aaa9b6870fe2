"""What every HTML page of ours is made with: templates, one style sheet, one set of colours."""
