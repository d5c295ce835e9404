"""What travels over HTTP: plain structs and their JSON, for the gateway and for the store that talks to one."""
