"""Write the package's data of Kafka's keys again."""

from tests.kit.releases import DATA, generate

DATA.write_text(generate())
print(DATA)
