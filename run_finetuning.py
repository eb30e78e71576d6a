"""Fine-tunes BERT on a task, as `official-bert finetune` does: `python -m run_finetuning --help`."""

from official_bert.utils.signals import interruptible

if __name__ == "__main__":
    with interruptible():
        from official_bert.commands import FINETUNE

        FINETUNE.run_as_script()
