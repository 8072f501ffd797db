"""Options: the table of all, quantities as people write them, and checks of arguments."""
