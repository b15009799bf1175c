"""What serving costs."""
