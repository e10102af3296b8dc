"""Long and lossy paths: bulk and small messages over each transport, through an emulated path."""
