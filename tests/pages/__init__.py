"""What every page of ours must be, and the browser that shows it."""
