"""Exports a model for LiteRT or ONNX: `python -m export_portable --model_dir=X --eval_file=Y --output_dir=Z`."""

from official_bert.main import run_command

if __name__ == "__main__":
    run_command("export-portable")
