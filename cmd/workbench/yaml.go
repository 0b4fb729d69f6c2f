package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"go.yaml.in/yaml/v4"
)

// maxYAMLNodes bounds what the aliases of a document may make of it.
const maxYAMLNodes = 1 << 20

// fromYAML is a YAML document as JSON. Keys of mappings are text as it is
// written, such as the 200 of a response; what JSON has no type for is text too,
// such as a date.
func fromYAML(raw []byte) (json.RawMessage, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, err
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("it is no mapping")
	}
	c := yamlConverter{left: maxYAMLNodes}
	v, err := c.value(doc.Content[0])
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

type yamlConverter struct {
	left int // nodes that may follow
	open []*yaml.Node
}

func (c *yamlConverter) value(n *yaml.Node) (any, error) {
	if c.left--; c.left < 0 {
		return nil, errAlias
	}
	switch n.Kind {
	case yaml.AliasNode:
		for _, o := range c.open {
			if o == n.Alias {
				return nil, fmt.Errorf("line %d: an alias is part of what it stands for", n.Line)
			}
		}
		c.open = append(c.open, n.Alias)
		v, err := c.value(n.Alias)
		c.open = c.open[:len(c.open)-1]
		return v, err
	case yaml.SequenceNode:
		all := make([]any, 0, len(n.Content))
		for _, item := range n.Content {
			v, err := c.value(item)
			if err != nil {
				return nil, err
			}
			all = append(all, v)
		}
		return all, nil
	case yaml.MappingNode:
		return c.mapping(n)
	case yaml.ScalarNode:
		return scalar(n)
	case yaml.DocumentNode, yaml.StreamNode:
	}
	return nil, fmt.Errorf("line %d: a document within the document", n.Line)
}

func (c *yamlConverter) mapping(n *yaml.Node) (map[string]any, error) {
	own, merged := map[string]any{}, map[string]any{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("line %d: a key is not text", key.Line)
		}
		v, err := c.value(n.Content[i+1])
		if err != nil {
			return nil, err
		}
		if key.ShortTag() == "!!merge" {
			if err := merge(merged, v, key.Line); err != nil {
				return nil, err
			}
			continue
		}
		if _, twice := own[key.Value]; twice {
			return nil, fmt.Errorf("line %d: %q is there twice", key.Line, key.Value)
		}
		own[key.Value] = v
	}
	for name, v := range own {
		merged[name] = v
	}
	return merged, nil
}

// merge adds what << names: a mapping, or several of which the first wins.
func merge(into map[string]any, v any, line int) error {
	all, ok := v.([]any)
	if !ok {
		all = []any{v}
	}
	for _, one := range all {
		m, ok := one.(map[string]any)
		if !ok {
			return fmt.Errorf("line %d: << names no mapping", line)
		}
		for name, v := range m {
			if _, there := into[name]; !there {
				into[name] = v
			}
		}
	}
	return nil
}

// scalar is a value of JSON, or the text of one that JSON does not have.
func scalar(n *yaml.Node) (any, error) {
	switch n.ShortTag() {
	case "!!null":
		return nil, nil //nolint:nilnil // JSON's null
	case "!!bool", "!!int", "!!float":
		var v any
		if err := n.Decode(&v); err != nil {
			return nil, err
		}
		if f, ok := v.(float64); ok && (math.IsInf(f, 0) || math.IsNaN(f)) {
			return n.Value, nil
		}
		return v, nil
	}
	return n.Value, nil
}
