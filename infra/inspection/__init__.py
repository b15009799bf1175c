"""`towline inspect`: everything that is known of one id, and why an event of it may not be there."""
