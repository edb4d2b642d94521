"""The form for a training job: its fields are those that the hyper-parameters declare."""
