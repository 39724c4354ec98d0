"""The provider's prompt cache: its rules, where marks pay, what it will read and write, and why it missed."""
