"""Reading: cuts, filters, the plan of a scan, the scan, and metadata tables."""
