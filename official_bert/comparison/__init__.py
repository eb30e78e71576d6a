"""Several runs beside each other: their curves over what they cost, and what differs in their settings.

Pre-training and fine-tuning runs alike. Nothing imports it but the command.
"""
