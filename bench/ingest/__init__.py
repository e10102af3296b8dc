"""An ingest server and its producers, beside what else makes records durable."""
