"""Memory: notes in Org and Markdown files, searched and rendered as views within a token limit."""
