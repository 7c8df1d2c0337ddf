"""What did not fit: which rows are open, and how they are read again once what they broke has been mended."""
