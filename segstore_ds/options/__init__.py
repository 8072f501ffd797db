"""Options: their table, quantities as people write them, and checks of arguments."""
