"""Any number of classes for each text or pair."""
