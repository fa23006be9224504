"""The router's HTTP side: the strict edge, the OpenAI parse, upstream connections, the relay and the admin port."""
