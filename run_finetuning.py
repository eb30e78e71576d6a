"""Fine-tunes BERT on a task: `python -m run_finetuning --help`."""

from official_bert.main import run_command

if __name__ == "__main__":
    run_command("finetune")
