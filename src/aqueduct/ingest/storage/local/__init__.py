"""Storage on a local disk: write-ahead logs, Parquet segments and manifests."""
