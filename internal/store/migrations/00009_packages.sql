-- Packages that code installed: sets with their locks, see workbench.PackageSet.
ALTER TABLE sessions ADD COLUMN packages {{text}} NOT NULL DEFAULT '[]';
ALTER TABLE runs ADD COLUMN packages {{text}} NOT NULL DEFAULT '[]';
