"""What commands share: the terminal, tables, options, exit codes and help."""
