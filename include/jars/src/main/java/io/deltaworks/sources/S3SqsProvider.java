package io.deltaworks.sources;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The Python source {@code s3-sqs}, which gets one option more: where its query's checkpoint is.
 *
 * <p>Spark gives that to sources in Java alone, and only when a query starts. A class with this alias is preferred to
 * a Python source of the same name, which is what it asks Spark for. Without this jar the Python source runs as it is,
 * and has to be given a {@code stateLocation}.
 */
public final class S3SqsProvider implements TableProvider, DataSourceRegister {
  private static final String NAME = "s3-sqs";
  /** Set here alone: `sources/0` below the checkpoint, or the source's name instead of its number. */
  private static final String CHECKPOINT = "sourceCheckpointLocation";

  @Override
  public String shortName() {
    return NAME;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return inPython().inferSchema(options);
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return new CheckpointedTable(schema);
  }

  /** One for each use: it keeps the source it made of the options it first saw. */
  private static PythonDataSourceV2 inPython() {
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(NAME);
    return source;
  }

  private static final class CheckpointedTable extends PythonTable {
    private final StructType schema;

    CheckpointedTable(StructType schema) {
      super(inPython(), NAME, schema);
      this.schema = schema;
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return () -> new CheckpointedScan(schema, options);
    }
  }

  private static final class CheckpointedScan extends PythonScan {
    private final StructType schema;
    private final CaseInsensitiveStringMap options;

    CheckpointedScan(StructType schema, CaseInsensitiveStringMap options) {
      super(inPython(), NAME, schema, options, new Filter[0]);
      this.schema = schema;
      this.options = options;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
      Map<String, String> more = new HashMap<>(options.asCaseSensitiveMap());
      more.put(CHECKPOINT, checkpointLocation);
      CaseInsensitiveStringMap all = new CaseInsensitiveStringMap(more);
      return new PythonScan(inPython(), NAME, schema, all, new Filter[0]).toMicroBatchStream(checkpointLocation);
    }
  }
}
