"""From text files to record files, by the rules: on one machine (`one_machine`) and on Apache Beam (`beam`).

On one machine `fast` keeps all cores busy with worker processes, in little memory, and can be resumed; `reference` does
what the original did, record by record. `preparation`, `run_plan`, `shuffle` and `outputs` are shared. The package
imports `rules` and `text`; the commands alone import it.
"""
