"""The public API: channels, connections and servers, as facades over the runtime."""
