"""Files of nodes: properties in each stage, meta.properties, directories."""
