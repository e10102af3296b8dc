"""The Spark source: plans offset ranges on the driver, and reads them in tasks."""
