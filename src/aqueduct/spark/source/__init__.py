"""The Spark source: plans offset ranges and reads them."""
