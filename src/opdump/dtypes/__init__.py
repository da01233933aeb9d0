"""Element types, their codes in the formats, and how narrow ones become wide."""
