"""Map, teacher, test part and folds of a setting that the protocol has chosen, made again for other parts."""

from __future__ import annotations

from functools import cached_property

from core.model_selection.folds import TuningFolds, make_folds
from core.run import Run as CoreRun
from core.training.config import TrainingConfig
from core.training.evaluation import Examination
from core.training.preparation import Preparation, prepare
from experiments.data import Split
from experiments.effort import Effort
from experiments.folds import folds_of
from experiments.plans import Plan
from experiments.setting import Setting


class Classroom:
    """Everything is made when it is first asked for: the same bits as in the protocol's run."""

    def __init__(self, plan: Plan, data: Split, setting: Setting, effort: Effort) -> None:
        self._plan, self._data, self._setting, self._effort = plan, data, setting, effort

    @cached_property
    def preparation(self) -> Preparation:
        """Map and teacher, fitted to the training part."""
        setting = self._setting
        config = TrainingConfig(
            features=setting.features, teacher_C=setting.teacher_C, seed=self._effort.seed
        )
        return prepare(self._data.train, config)

    @cached_property
    def examination(self) -> Examination:
        """The test part."""
        return Examination.of(self.preparation, self._data.test)

    @cached_property
    def folds(self) -> TuningFolds:
        """The folds that the students were tuned on, with their teachers."""
        preparation, config = self.preparation, self.preparation.config
        groups = self._data.groups if self._plan.by_groups else None
        return make_folds(
            preparation.features,
            preparation.labels,
            preparation.classes,
            teacher_Cs=(config.teacher_C,),
            fold_of=folds_of(preparation.labels, groups, self._plan.folds, config.seed),
            tolerance=config.teacher_tolerance,
            max_epochs=config.teacher_max_epochs,
            warm_start=preparation.teacher,
            run=CoreRun(config.seed, self._effort.n_threads),
        )
