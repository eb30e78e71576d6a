"""Fine-tunes on a table with Keras: `python examples/finetune.py examples/reviews.csv CHECKPOINT`.

The table has the columns text and label; CHECKPOINT holds trained weights of any format. Every fifth row is kept to
score the model, which goes to `reviews.keras` and, for the server, to `exports/example`.
"""

import csv
import sys

import official_bert

table, checkpoint = sys.argv[1:]
with open(table, newline="", encoding="utf-8") as file:
    rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
train = [row for number, row in enumerate(rows) if number % 5]
dev = rows[::5]
names = sorted({label for _, label in rows})

classifier = official_bert.TextClassifier.from_checkpoint(checkpoint, labels=names, max_seq_length=32)
classifier.compile(learning_rate=1e-3)  # for so small a model; 5e-5 without this line
classifier.fit(
    *zip(*train, strict=True), validation_data=tuple(zip(*dev, strict=True)), batch_size=4, epochs=60, verbose=2
)
for (text, label), answer in zip(dev, classifier.classify([text for text, _ in dev]), strict=True):
    print(f"{text!r}: {answer} (labelled {label})")
classifier.save("reviews.keras")
classifier.export("exports/example")
