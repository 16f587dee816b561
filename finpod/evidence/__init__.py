"""What must stand beside a result before anyone should believe it."""
