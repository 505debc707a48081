"""The live tail: server, websocket sessions, access control and client."""
