"""An ingest server and its producers, compared with other durable stores."""
