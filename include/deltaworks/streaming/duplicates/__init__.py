"""Flags copies that producers sent again, while a batch is written: against earlier batches, and within the batch."""
