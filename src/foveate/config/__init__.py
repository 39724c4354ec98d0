"""What files say: budgets and sections, with errors that name the file, the line and the key."""
