"""Write the data of Kafka's keys, requests and znodes again."""

from tests.kit.releases import DATA, REQUESTS, ZNODES, generate, generate_requests, generate_znodes

DATA.write_text(generate())
REQUESTS.write_text(generate_requests())
ZNODES.write_text(generate_znodes())
print(DATA, REQUESTS, ZNODES)
