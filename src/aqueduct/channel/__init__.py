"""What people use: channels, their two handles, connections and servers."""
