"""From what clients wrote down to the little that the ledger must look at: what is beyond doubt is counted and left out."""
